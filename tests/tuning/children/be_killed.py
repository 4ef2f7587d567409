from tests.tuning.children import be_killed, go_wrong

if __name__ == "__main__":
    go_wrong(be_killed)
