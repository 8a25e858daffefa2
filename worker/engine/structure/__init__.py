"""Discovery and verification of a model's hook points.

To add a hook point, change three files:
1. `actograph/contract/hooks.py`: add the name to `LayerPoint` or `ModelPoint`, and its aliases.
2. `layer_points.py` (per layer), `heads.py` (attention), `moe.py` (routers) or `structure.py` (once per
   model): find its location and verify it with `comparison`; `found.lack` says why a layer lacks it.
3. `tests/integration/worker/engine/architectures/test_hook_table.py`: list the architectures that have it.
Capturing, edits, plans and the API take the point from the table of hooks.
"""
