from tests.tuning.children import eat, go_wrong

if __name__ == "__main__":
    go_wrong(eat)
