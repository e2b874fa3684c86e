package org.edgedec.decoding

import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.max
import kotlin.math.min
import org.edgedec.CorruptException
import org.edgedec.Sampling

/**
 * Logits of one row -> a token: bias, penalties, temperature, then the cuts top-k, top-p, min-p, typical, each on what the
 * one before left, renormalised. Order and meaning are those of Python's `edgedec.sampling` (and Hugging Face's).
 */
internal class Sampler(private val sampling: Sampling) {
    /** The token that follows [ids], of which the first [prompt] were given. [logits] is changed. */
    fun next(logits: FloatArray, ids: List<Int>, prompt: Int, random: () -> Double): Int {
        if (sampling.adjusts) adjust(logits, ids, prompt)
        val best = largest(logits)
        if (!logits[best].isFinite()) throw CorruptException("logits: the largest is ${logits[best]}; the bundle is damaged")
        return if (sampling.temperature == 0.0) best else draw(cut(Candidates.of(logits, sampling)), random())
    }

    private fun adjust(logits: FloatArray, ids: List<Int>, prompt: Int) {
        for ((token, bias) in sampling.logitBias) if (token < logits.size) logits[token] += bias
        if (sampling.repetitionPenalty != 1.0) {
            val penalty = sampling.repetitionPenalty.toFloat()
            for (token in ids.toSet()) if (token < logits.size) {
                logits[token] = if (logits[token] < 0) logits[token] * penalty else logits[token] / penalty
            }
        }
        if (sampling.presencePenalty == 0.0 && sampling.frequencyPenalty == 0.0) return
        val counts = ids.subList(min(prompt, ids.size), ids.size).groupingBy { it }.eachCount()
        for ((token, n) in counts) if (token < logits.size) {
            logits[token] -= (sampling.presencePenalty + sampling.frequencyPenalty * n).toFloat()
        }
    }

    private fun cut(all: Candidates): Candidates {
        var kept = all
        if (sampling.topP < 1) kept = kept.keep(topP(kept, sampling.topP))
        if (sampling.minP > 0) kept = kept.p.maxOrNull()!!.let { top -> kept.keep(BooleanArray(kept.size) { i -> kept.p[i] >= sampling.minP * top }) }
        if (sampling.typicalP < 1) kept = kept.keep(typical(kept, sampling.typicalP))
        return kept
    }

    /** Drops the unlikeliest while what is dropped stays within 1 - mass; of a tie the lowest ids stay. */
    private fun topP(c: Candidates, mass: Double): BooleanArray {
        val p = c.normalised()
        val order = (0 until c.size).sortedWith(compareByDescending<Int> { c.scores[it] }.thenBy { it })
        val keep = BooleanArray(c.size)
        var dropped = 0.0
        var stay = c.size
        while (stay > 1) {
            dropped += p[order[stay - 1]]
            if (dropped > 1 - mass) break
            stay--
        }
        for (i in 0 until stay) keep[order[i]] = true
        return keep
    }

    /** Locally typical sampling (Meister et al. 2022): the tokens whose surprise is nearest the entropy. */
    private fun typical(c: Candidates, mass: Double): BooleanArray {
        val p = c.normalised()
        val entropy = p.sumOf { -it * ln(it) }
        val far = DoubleArray(c.size) { abs(-ln(p[it]) - entropy) }
        val order = (0 until c.size).sortedBy { far[it] }
        var sum = 0.0
        var last = 0
        for (i in order) {
            sum += p[i]
            if (sum < mass) last++
        }
        val border = far[order[min(last, c.size - 1)]]
        return BooleanArray(c.size) { far[it] <= border }
    }

    private fun draw(c: Candidates, u: Double): Int {
        if (c.size == 1) return c.ids[0]
        val cdf = c.normalised()
        for (i in 1 until cdf.size) cdf[i] += cdf[i - 1]
        val at = u * cdf.last()
        return c.ids[min(cdf.indexOfFirst { it > at }.let { if (it < 0) c.size - 1 else it }, c.size - 1)]
    }

    companion object {
        /** The lowest id of the largest logit. */
        fun largest(logits: FloatArray): Int {
            var best = 0
            for (i in 1 until logits.size) if (logits[i] > logits[best] || logits[best].isNaN()) best = i
            return best
        }
    }
}

/** Tokens that may be drawn, by id. p: exp((score - top) / temperature), positive, not normalised. */
private class Candidates(val ids: IntArray, val scores: FloatArray, val p: DoubleArray) {
    val size: Int get() = ids.size

    fun normalised(): DoubleArray {
        val sum = p.sum()
        return DoubleArray(size) { p[it] / sum }
    }

    fun keep(keep: BooleanArray): Candidates {
        val at = (0 until size).filter { keep[it] }
        return Candidates(IntArray(at.size) { ids[at[it]] }, FloatArray(at.size) { scores[at[it]] }, DoubleArray(at.size) { p[at[it]] })
    }

    companion object {
        fun of(logits: FloatArray, sampling: Sampling): Candidates {
            val top = logits[Sampler.largest(logits)]
            val floor = max(if (sampling.topK in 1 until logits.size) kthLargest(logits, sampling.topK) else -Float.MAX_VALUE, -Float.MAX_VALUE)
            val weights = DoubleArray(logits.size) { exp((logits[it].toDouble() - top) / sampling.temperature) }
            val ids = logits.indices.filter { logits[it] >= floor && weights[it] > 0 }.toIntArray()
            return Candidates(ids, FloatArray(ids.size) { logits[ids[it]] }, DoubleArray(ids.size) { weights[ids[it]] })
        }

        private fun kthLargest(logits: FloatArray, k: Int): Float = logits.copyOf().also { it.sort() }[logits.size - k]
    }
}
