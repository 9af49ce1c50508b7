"""The compact policy: words and chat template, weights, attention, decoding, checkpoints; and other models, asked."""
