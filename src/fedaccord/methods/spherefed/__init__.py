"""SphereFed."""
