"""Who runs in this step, under the token budget. Knows nothing of tensors or sockets."""
