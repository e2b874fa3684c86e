package org.edgedec

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer
import java.io.File
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.edgedec.decoding.Pcg64
import org.edgedec.decoding.StopStrings
import org.edgedec.text.ChatTemplate
import org.edgedec.text.Detokenizer
import org.edgedec.text.Tokenizer
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.DynamicTest.dynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import java.util.Random

class TextTest {
    private val nano = File(NANO.folder, "tokenizer.json")

    @Test
    fun `tokens are those of Python`() {
        val tokenizer = Tokenizer.open(nano)
        for (case in golden.list("encoded")) {
            assertEquals(case.ints("ids"), tokenizer.encode(case.text("text")).toList(), case.text("text"))
            assertEquals(case.ints("plain"), tokenizer.encode(case.text("text"), special = false).toList())
        }
    }

    @TestFactory
    fun `tokens are those of Hugging Face's library`(): List<DynamicTest> {
        val phi = File(System.getProperty("edgedec.tokenizers"), "phi-3-mini/tokenizer.json")
        return listOf(nano, phi).map { file ->
            dynamicTest(file.parentFile.name) {
                assumeTrue(file.isFile) { "$file: not here" }
                val own = Tokenizer.open(file)
                HuggingFaceTokenizer.newInstance(file.toPath(), mapOf("addSpecialTokens" to "true", "truncation" to "false")).use { theirs ->
                    for (text in texts()) compare(own, theirs, text)
                }
            }
        }
    }

    private fun compare(own: Tokenizer, theirs: HuggingFaceTokenizer, text: String) {
        val encoded = theirs.encode(text)
        val expected = encoded.ids.map(Long::toInt)
        val ids = own.encode(text)
        assertEquals(expected, ids.toList(), text)
        val decoded = theirs.decode(encoded.ids, true)
        assertEquals(decoded, own.decode(ids), text)
        for (cut in setOf(0, ids.size / 3, ids.size)) {
            val stream = Detokenizer(own, ids.copyOf(cut))
            val pieces = ids.drop(cut).joinToString("") { stream.push(it) } + stream.flush()
            assertEquals(own.decode(ids), own.decode(ids.copyOf(cut)).trimUnfinished() + pieces, "$text cut at $cut")
        }
    }

    /** Without the marks of a character that a prompt leaves unfinished: it comes whole afterwards. */
    private fun String.trimUnfinished() = trimEnd('\uFFFD')

    private fun texts(): List<String> {
        val random = Random(5)
        val letters = "abc XYZ  019,.!?'\"\n\t-_<>|sé中🙂ß\u00a0".codePoints().toArray()
        val drawn = List(300) { IntArray(random.nextInt(40)) { letters[random.nextInt(letters.size)] }.let { String(it, 0, it.size) } }
        return golden.list("encoded").map { it.text("text") } + drawn
    }

    @Test
    fun `a damaged tokenizer is an error of one line`() {
        val raw = nano.readText()
        val cases = listOf("", "{}", "[1]", raw.take(5000), raw.replace("\"BPE\"", "\"Unigram\""), raw.replace("\"ByteLevel\"", "\"Other\""), "[".repeat(100_000))
        for (case in cases) {
            val error = assertThrows(TextException::class.java) { Tokenizer.parse(case) }
            assertTrue('\n' !in error.message!!, error.message)
        }
    }

    @TestFactory
    fun `chats are those of Jinja`(): List<DynamicTest> = golden.list("templates").mapIndexed { i, case ->
        dynamicTest("${case.text("name")} $i") {
            val template = ChatTemplate(case.text("template"))
            val messages = case.getValue("messages").jsonArray.map { plain(it) }
            val values = mapOf("messages" to messages, "tools" to null, "documents" to null, "bos_token" to "<s>", "eos_token" to "</s>", "add_generation_prompt" to true)
            if ("error" in case) assertThrows(TextException::class.java) { template.renderValues(values) }
            else assertEquals(case.text("text"), template.renderValues(values))
        }
    }

    @Test
    fun `a template that this subset lacks, or that goes too far, is refused with its line`() {
        val cases = mapOf(
            "{% include 'x' %}" to "line 1", "\n{{ x | frob }}" to "line 2", "{% for x in range(3) %}" to "endfor", "{{ 'a" to "no end",
            "{{ ''.__class__ }}" to "unsafe", "{{ 'aaaa' * 999999 }}" to "too large", "{{ raise_exception('mine') }}" to "mine",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ '' }}{% endfor %}{% endfor %}" to "steps",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}" to "nested", "{{ nothing.at.all }}" to "not defined",
        )
        for ((source, part) in cases) {
            val error = assertThrows(TextException::class.java, { ChatTemplate(source).render(emptyList()) }, source)
            assertTrue(part in error.message!!, "$source: ${error.message}")
        }
    }

    @Test
    fun `random numbers are those of numpy`() {
        for (case in golden.list("random")) {
            val random = Pcg64(case.getValue("seed").jsonPrimitive.content.toLong())
            val expected = case.getValue("values").jsonArray.map { it.jsonPrimitive.content.toDouble() }
            assertEquals(expected, List(5) { random.nextDouble() })
            val twin = Pcg64.restored(random.saved())
            assertEquals(random.nextDouble(), twin.nextDouble())
        }
    }

    @Test
    fun `stop strings are found however a text is cut`() {
        val random = Random(3)
        repeat(2000) {
            val text = String(CharArray(random.nextInt(14)) { "abc"[random.nextInt(3)] })
            val stops = List(1 + random.nextInt(2)) { String(CharArray(1 + random.nextInt(3)) { "abc"[random.nextInt(3)] }) }
            val found = stops.map { text.indexOf(it) }.filter { it >= 0 }.minOrNull()
            val cutter = StopStrings(stops)
            var at = 0
            val out = StringBuilder()
            while (at < text.length) {
                val next = minOf(text.length, at + 1 + random.nextInt(4))
                out.append(cutter.push(text.substring(at, next)))
                at = next
            }
            out.append(cutter.flush())
            assertEquals(text.substring(0, found ?: text.length), out.toString(), "$text $stops")
            assertEquals(found != null, cutter.hit)
        }
    }
}
