"""What becomes of a record: score, protection, holds, policy (SPEC §6). Pure: frames in, frame out."""
