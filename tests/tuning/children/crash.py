from tests.tuning.children import crash, go_wrong

if __name__ == "__main__":
    go_wrong(crash)
