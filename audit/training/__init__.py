"""Training of backbones on series without their test regions, before they are audited there like any checkpoint."""
