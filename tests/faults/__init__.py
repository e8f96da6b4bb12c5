"""Faults that are made to happen, and what must hold when they do.

    python -m tests.faults             # all rows, one table; see --help
    python -m tests.faults.flips       # one row, with more or fewer trials
    python -m tests.faults.workers --stage fit --workers 4 --every 0.5 --kills 100

Each row is a module with a long version, which is a command that prints figures and ends with 1 if
anything did not hold. Short versions of all rows run with the other tests; some of them stood there
before. (i) is tests/integration, (u) is tests/unit.

| fault | long version | short versions |
|---|---|---|
| kill -9 or a stop of workers | `workers` | (i) test_faults_cluster, test_lineage_cluster, |
| | | test_training_troubles; (u) compute/test_checkpoint |
| kill -9 of the scheduler | `scheduler` | (i) test_faults_cluster |
| kill -9 of the driver | `driver` | (i) test_faults_driver, test_stores_killed, test_encode |
| disk full, or read-only | `full_disk` | (i) test_faults_disk, test_stores_killed |
| flip, truncate, delete | `flips` | (i) test_faults_files; (u) stores/test_integrity, |
| | | model/test_model_file_damaged |
| a poison row block | `poison` | (i) test_faults_poison, test_training_troubles |
| a slow or memory-starved worker | `starved` | (i) test_faults_starved; (u) compute/test_memory |
| hostile stores and models | `hostile` | (i) test_faults_files; (u) stores/test_hostile, |
| | | model/test_model_file_damaged, sources/test_hostile |
| two writers on one store | `two_writers` | (i) test_faults_files, test_stores_killed |

The package has no hooks for any of this. Faults come from outside: signals, small file systems,
bytes changed on disk; exact moments come from wrappers around its rename and link
(`forks`).

What guards files of others' formats: search results as ``.npz`` have the CRC-32 of the zip format,
which NumPy checks; as Parquet and Zarr checksums of their pages and chunks, which pyarrow checks if
told to (``page_checksum_verification=True``) and zarr always. FAISS's index, figures and pages have
none; they can be made again from what is guarded.
"""
