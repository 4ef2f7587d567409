from tests.tuning.children import go_wrong, hang

if __name__ == "__main__":
    go_wrong(hang)
