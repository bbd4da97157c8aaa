"""All notebooks from one command: what there is to do (`plan`), what is up to date (`fresh`), running it (`run`)."""
