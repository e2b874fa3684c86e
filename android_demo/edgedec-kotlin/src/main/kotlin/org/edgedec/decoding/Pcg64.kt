package org.edgedec.decoding

import java.math.BigInteger

/**
 * numpy's `default_rng(seed).random()`: PCG64 (O'Neill 2014, XSL-RR output) seeded through numpy's
 * SeedSequence, so that a seed gives the same random numbers here and in Python.
 */
class Pcg64 private constructor(private var state: BigInteger, private val increment: BigInteger) {
    constructor(seed: Long) : this(BigInteger.ZERO, BigInteger.ZERO, SeedSequence(seed).words(8))

    private constructor(zero: BigInteger, one: BigInteger, words: IntArray) : this(first(words), odd(words))

    /** A number in [0, 1), of 53 random bits. */
    fun nextDouble(): Double {
        state = state.multiply(MULTIPLIER).add(increment).and(MASK)
        return (output(state) ushr 11) * (1.0 / (1L shl 53))
    }

    /** What [restored] takes: state and increment. */
    fun saved(): String = "${state.toString(16)} ${increment.toString(16)}"

    companion object {
        private val MASK = BigInteger.ONE.shiftLeft(128).subtract(BigInteger.ONE)
        private val MULTIPLIER = BigInteger("2360ed051fc65da44385df649fccf645", 16)

        fun restored(saved: String): Pcg64 {
            val (state, increment) = saved.split(" ").map { BigInteger(it, 16) }
            require(state <= MASK && increment <= MASK && increment.testBit(0)) { "no state of PCG64" }
            return Pcg64(state, increment)
        }

        private fun output(state: BigInteger): Long =
            java.lang.Long.rotateRight(state.shiftRight(64).toLong() xor state.toLong(), state.shiftRight(122).toInt())

        private fun pair(words: IntArray, at: Int): BigInteger {
            fun word(i: Int) = BigInteger.valueOf(words[i].toLong() and 0xffffffffL)
            return (0..3).fold(BigInteger.ZERO) { sum, i -> sum.add(word(at + (i xor 2)).shiftLeft(32 * i)) }
        }

        private fun odd(words: IntArray): BigInteger = pair(words, 4).shiftLeft(1).or(BigInteger.ONE).and(MASK)

        private fun first(words: IntArray): BigInteger {
            val increment = odd(words)
            return increment.add(pair(words, 0)).multiply(MULTIPLIER).add(increment).and(MASK)
        }
    }
}

/** numpy's SeedSequence of one number with a pool of four words: words for a generator's state. */
private class SeedSequence(seed: Long) {
    private var constant = 0x43b0d7e5.toInt()
    private val pool = IntArray(4)

    init {
        val entropy = if (seed ushr 32 == 0L) intArrayOf(seed.toInt()) else intArrayOf(seed.toInt(), (seed ushr 32).toInt())
        for (i in pool.indices) pool[i] = hash(if (i < entropy.size) entropy[i] else 0)
        for (from in pool.indices) for (to in pool.indices) if (from != to) pool[to] = mix(pool[to], hash(pool[from]))
    }

    fun words(n: Int): IntArray {
        var c = 0x8b51f9dd.toInt()
        return IntArray(n) { i ->
            var value = pool[i % pool.size] xor c
            c *= 0x58f38ded
            value *= c
            value xor (value ushr 16)
        }
    }

    private fun hash(input: Int): Int {
        var value = input xor constant
        constant *= 0x931e8875.toInt()
        value *= constant
        return value xor (value ushr 16)
    }

    private fun mix(x: Int, y: Int): Int {
        val value = x * 0xca01f9dd.toInt() - y * 0x4973f715
        return value xor (value ushr 16)
    }
}
