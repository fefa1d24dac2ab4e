"""`python -m tests.service.fake_worker`: a worker process like any other, with fake folds."""

import os


def main() -> None:
    # Children import this module too: what only the worker needs is imported here.
    from registry.process.logs import configure_logs
    from registry.process.settings import Settings
    from tests.service.fake_folds import read_fake_job
    from worker.loop import Worker
    from worker.main import run_celery, run_worker

    settings = Settings()
    configure_logs(settings)
    if any(name.startswith("PROOF_") for name in os.environ):
        from tests.proofs.tampering import tamper

        tamper()
    if settings.broker_url is None:
        run_worker(Worker(settings, read_job=read_fake_job, warm=False), with_parent=True)
        return
    from worker.doorbell import make_celery

    app = make_celery(settings, lambda: Worker(settings, read_job=read_fake_job, warm=False))
    run_celery(app, with_parent=True)


if __name__ == "__main__":
    main()
