import pytest

from collage.measure.cache_flush import MIN_FLUSH_BYTES, SIMILAR, CacheFlush

MIB = 1 << 20


@pytest.mark.parametrize("cache", [1 * MIB, 32 * MIB, 480 * MIB])
@pytest.mark.parametrize("footprint", [1, 5 * MIB, 32 * MIB, 400 * MIB, 1 << 40])
def test_a_flush_holds_the_model_or_one_and_a_half_caches(footprint, cache):
    largest = max(MIN_FLUSH_BYTES, cache * 3 // 2)
    sweep = CacheFlush.of(footprint, cache)
    assert min(footprint, largest) <= sweep.size_bytes <= largest
    if sweep.size_bytes not in (MIN_FLUSH_BYTES, largest):
        assert sweep.size_bytes < 2 * footprint, "no more than it needs"
    assert CacheFlush.of(sweep.size_bytes, cache) == sweep


def test_this_machines_cache_is_the_default():
    assert CacheFlush.of(1).size_bytes == MIN_FLUSH_BYTES


@pytest.mark.parametrize("cache", [32 * MIB, 480 * MIB])
def test_similar_flushes_are_mutual_and_sorted_by_distance(cache):
    sweeps = {
        sweep.size_bytes: sweep for sweep in (CacheFlush.of(MIB << n, cache) for n in range(12))
    }
    for size, sweep in sweeps.items():
        ratios = [max(similar / size, size / similar) for similar in sweep.similar]
        assert ratios == sorted(ratios)
        assert all(1 < ratio <= SIMILAR for ratio in ratios)
        assert set(sweep.similar) < sweeps.keys()
        assert all(size in sweeps[similar].similar for similar in sweep.similar)


def test_a_tiny_cache_has_one_class_of_flushes():
    assert CacheFlush.of(1 << 30, 2 * MIB) == CacheFlush(MIN_FLUSH_BYTES)
