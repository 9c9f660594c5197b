"""Speed and quality, measured: each module prints ratios against a floor or a peer measured in the same run."""
