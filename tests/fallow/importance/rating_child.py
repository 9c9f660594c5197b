"""A backfill in a process of its own, to be killed: STORE URL CACHE; prints the report at its end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fallow.providers.model_answers import AnswersOnDisk
from fallow.providers.models import Endpoint, ModelClient

from fallow.importance.rating_run import RunOptions, rate_by_model
from fallow.model.times import wall_clock
from fallow.port.registry import open_provider


def main() -> None:
    store, url, cache, in_flight = sys.argv[1:5]
    answers = AnswersOnDisk(Path(cache))
    with (
        open_provider(store) as provider,
        ModelClient(Endpoint(model="m", base_url=url, in_flight=int(in_flight)), dialects=answers) as model,
    ):
        options = RunOptions(batch_size=4)
        report = rate_by_model(provider, model, options, now=wall_clock(), salt=f"{store}{cache}", answers=answers)
    print(json.dumps(report.to_json()))


if __name__ == "__main__":
    main()
