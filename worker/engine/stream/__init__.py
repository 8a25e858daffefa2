"""The decode loop: requests come and go between passes."""
