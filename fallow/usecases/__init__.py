"""One function a verb of SPEC §16: checked arguments in, a result out."""
