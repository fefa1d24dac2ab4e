"""Runs folds: the only room that knows both the registry and grasp_core."""
