"""`check --deep FOLDER`: what is fine in a folder of files, and what a job would not take, without a job.

`walk.py` says which files make up a data set, `rows.py` reads them in worker processes, `media.py` decodes
there what they hold, `survey.py` puts it together, `view.py` prints it.
"""
