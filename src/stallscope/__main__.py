"""`python -m stallscope` is `stallscope`; see the top of the package for the import path."""

if __name__ == "__main__":
    from stallscope.cli import main

    main()
