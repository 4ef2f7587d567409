from tests.tuning.children import lose

if __name__ == "__main__":
    lose()
