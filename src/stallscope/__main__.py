"""Run `stallscope` as `python -m stallscope`."""

if __name__ == "__main__":
    from stallscope.cli.main import main

    main()
