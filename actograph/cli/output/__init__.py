"""Tables, JSON and progress bars on the terminal."""
