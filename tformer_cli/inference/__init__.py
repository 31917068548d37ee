"""What makes a network fast once its weights no longer change, behind `prepare_for_inference`."""
