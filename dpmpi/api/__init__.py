"""dpmpi in Python: the functions behind `import dpmpi`. They are used through the package: `dpmpi.train(...)`."""
