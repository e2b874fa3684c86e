package org.edgedec

import java.io.File
import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.jsonObject
import org.edgedec.engine.NativeLibrary
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

class GenerateTest {
    private fun collect(session: Session, prompt: String?, options: GenerateOptions): List<Token> = runBlocking { session.generate(prompt, options).toList() }

    private fun ids(tokens: List<Token>) = tokens.map { it.id }.filter { it >= 0 }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `the golden stories`(engine: String) = NANO.open(engine).use { model ->
        for (story in golden.list("stories")) {
            val tokens = collect(model.session(), story.text("prompt"), GenerateOptions(maxTokens = 48))
            assertEquals(story.ints("tokens"), ids(tokens), story.text("prompt"))
            assertEquals(story.text("text"), tokens.joinToString("") { it.text })
        }
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `a seed draws the tokens that Python draws`(engine: String) = NANO.open(engine).use { model ->
        val prompt = golden.list("stories")[0].text("prompt")
        val same = golden.list("drawn").count { case ->
            val options = GenerateOptions(maxTokens = 40, sampling = sampling(case.getValue("sampling").jsonObject))
            ids(collect(model.session(), prompt, options)) == case.ints("tokens")
        }
        // ONNX Runtime's products round otherwise, so that a draw near a border may fall on its other side.
        assertTrue(same >= if (engine == "native") golden.list("drawn").size else golden.list("drawn").size - 3, "$same are the same")
    }

    /** Settings, cache formats, drafters, forks and saved sessions; C replays the same file (tests/library/test_equality.py). */
    @Test
    fun `200 random requests have the tokens of Python`(@TempDir folder: File) {
        val models = listOf("f32", "f16", "int8", "int4").associateWith { NANO.open("native", kv = it) }
        var accepted = 0
        for (case in golden.list("requests")) {
            val options = SessionOptions(drafts = Drafts.valueOf(case.text("drafts").uppercase()))
            val model = models.getValue(case.text("kv"))
            val session = model.session(options)
            val drawn = sampling(case.getValue("sampling").jsonObject)
            assertEquals(case.ints("tokens"), replay(session, case.ints("ids"), GenerateOptions(maxTokens = 16, sampling = drawn)), "$case")
            accepted += session.stats!!.accepted
            val text = if (case.text("then") == "cut") session.ids.toList().dropLast(3) else null
            val other = when (case.text("then")) {
                "fork" -> session.fork()
                "saved" -> File(folder, "s").let { file -> session.save(file).let { model.session(options).apply { load(file) } } }
                else -> session
            }
            val more = GenerateOptions(maxTokens = 10, sampling = drawn.copy(seed = null))
            assertEquals(case.ints("more"), replay(other, text, more), "$case")
            setOf(session, other).forEach { it.close() }
        }
        models.values.forEach { it.close() }
        assertTrue(accepted > 0, "nothing was drafted and right")
    }

    private fun replay(session: Session, text: List<Int>?, options: GenerateOptions): List<Int> =
        ids(runBlocking { session.generateTokens(text?.toIntArray(), options).toList() })

    @Test
    fun `libedgedec reads texts as this library does`() = NANO.open("native").use { model ->
        val library = NativeLibrary.open(NANO.folder.path, 1, null, false)
        try {
            for (case in golden.list("encoded")) {
                val text = case.text("text")
                assertEquals(model.tokenizer.encode(text).toList(), NativeLibrary.encode(library, text.toByteArray(), 3).toList(), text)
            }
        } finally {
            NativeLibrary.close(library)
        }
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `drafts change no token`(engine: String) = NANO.open(engine).use { model ->
        val prompt = "The cat sat on the mat. The dog sat on the mat. The cat sat on the"
        val plain = collect(model.session(), prompt, GenerateOptions(maxTokens = 60))
        val session = try {
            model.session(SessionOptions(drafts = Drafts.COPY))
        } catch (e: UnavailableException) {
            return@use assumeTrue(false) { e.message }
        }
        val drafted = collect(session, prompt, GenerateOptions(maxTokens = 60))
        assertTrue(session.stats!!.accepted > 0 && drafted.any { it.drafted }, "something was drafted and accepted")
        assertTrue(session.stats!!.calls < 60)
        assertTrue(plain.none { it.drafted })
        assertEquals(ids(plain), ids(drafted))
    }

    @Test
    fun `a narrower cache on ONNX Runtime tells a story too`() = NANO.open("ort", kv = "int8").use { model ->
        assertEquals("int8", model.kv)
        val story = golden.list("stories")[0]
        val tokens = ids(collect(model.session(), story.text("prompt"), GenerateOptions(maxTokens = 48)))
        assertEquals(story.ints("tokens").take(8), tokens.take(8))
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `leaving a flow early leaves the session as if no more had been asked for`(engine: String) = NANO.open(engine).use { model ->
        val story = golden.list("stories")[0]
        val session = model.session()
        val first = runBlocking { session.generate(story.text("prompt"), GenerateOptions(maxTokens = 48)).take(5).toList() }
        assertEquals(story.ints("ids") + story.ints("tokens").take(5), session.ids.toList())
        val rest = collect(session, null, GenerateOptions(maxTokens = 43))
        assertEquals(story.ints("tokens"), ids(first) + ids(rest))
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `a cancelled coroutine ends the generation`(engine: String) = NANO.open(engine).use { model ->
        val session = model.session()
        val seen = ArrayList<Token>()
        runBlocking {
            val started = CountDownLatch(3)
            val job = launch(kotlinx.coroutines.Dispatchers.Default) {
                session.generate("Once upon a time").collect {
                    seen.add(it)
                    started.countDown()
                    delay(5)
                }
            }
            check(started.await(20, java.util.concurrent.TimeUnit.SECONDS)) { "nothing came" }
            job.cancelAndJoin()
        }
        val length = session.length
        assertTrue(length < 60, "it stopped after $length tokens")
        assertEquals(ids(seen), session.ids.toList().drop(5).take(seen.size))
        assertEquals(5, ids(collect(session, null, GenerateOptions(maxTokens = 5, ignoreEos = true))).size)
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `cancel from another thread`(engine: String) = NANO.open(engine).use { model ->
        val session = model.session()
        val error = assertThrows(CancelledException::class.java) {
            session.generateBlocking("Once upon a time", GenerateOptions(ignoreEos = true)) {
                if (session.length == 20) thread { session.cancel() }.join()
                true
            }
        }
        assertTrue("cancelled" in error.message!!, error.message)
        assertTrue(session.length in 20..30)
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `a saved session continues as it would have`(engine: String, @TempDir folder: File) = NANO.open(engine).use { model ->
        val options = GenerateOptions(maxTokens = 20, sampling = Sampling(temperature = 0.9))
        val session = model.session()
        collect(session, "Once upon a time", GenerateOptions(maxTokens = 12, sampling = Sampling(temperature = 0.9, seed = 11)))
        val file = File(folder, "story.session")
        session.save(file)
        assertEquals(listOf("story.session"), folder.list()!!.toList())
        val expected = ids(collect(session, null, options))
        val other = model.session()
        other.load(file)
        assertEquals(expected, ids(collect(other, null, options)))
        val raw = file.readBytes()
        raw[raw.size / 2] = (raw[raw.size / 2] + 1).toByte()
        file.writeBytes(raw)
        val before = other.ids
        assertThrows(SessionException::class.java) { other.load(file) }
        assertArrayEquals(before, other.ids)
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `a fork goes its own way`(engine: String) = NANO.open(engine).use { model ->
        val session = model.session()
        collect(session, "Once upon a time", GenerateOptions(maxTokens = 8))
        val twin = session.fork()
        val next = GenerateOptions(maxTokens = 8)
        val expected = ids(collect(session, null, next))
        assertEquals(expected, ids(collect(twin, null, next)))
        twin.truncate(5)
        assertEquals(5, twin.length)
        assertEquals(21, session.length)
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `what ends a text`(engine: String) = NANO.open(engine).use { model ->
        val session = model.session()
        val cut = collect(session, "Once upon a time", GenerateOptions(maxTokens = 48, stop = listOf("named Lily", "zzz")))
        assertEquals(", there was a little girl ", cut.joinToString("") { it.text })
        assertEquals(Finish.STOP, session.stats!!.finish)
        collect(session, "Once upon a time", GenerateOptions(maxTokens = 3))
        assertEquals(Finish.LENGTH, session.stats!!.finish)
        val small = model.session(SessionOptions(context = 32))
        collect(small, "Once upon a time", GenerateOptions(ignoreEos = true))
        assertEquals(Finish.CONTEXT, small.stats!!.finish)
        val stop = golden.list("stories")[0].ints("tokens")[9]
        val ended = collect(session, "Once upon a time", GenerateOptions(maxTokens = 48, stopTokens = setOf(stop)))
        assertEquals(9, ids(ended).size)
        assertThrows(ContextFullException::class.java) { collect(small, "Once upon a time ".repeat(20), GenerateOptions(maxTokens = 3)) }
        Unit // a test that returns anything is left out
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `trimmed memory is taken again`(engine: String) = NANO.open(engine).use { model ->
        val story = golden.list("stories")[0]
        val session = model.session()
        val first = ids(collect(session, story.text("prompt"), GenerateOptions(maxTokens = 10)))
        model.trim()
        assertEquals(story.ints("tokens"), first + ids(collect(session, null, GenerateOptions(maxTokens = 38))))
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `a session is for one generation at a time, and not after it is closed`(engine: String) {
        val model = NANO.open(engine)
        val session = model.session()
        session.generateBlocking("Once", GenerateOptions(maxTokens = 3)) {
            assertThrows(UsageException::class.java) { session.truncate(1) }
            var refused: Throwable? = null
            thread { refused = runCatching { session.ids }.exceptionOrNull() }.join()
            assertTrue(refused is UsageException)
            true
        }
        model.close()
        assertThrows(UsageException::class.java) { session.ids }
        session.close()
        model.close()
    }

    @ParameterizedTest
    @ValueSource(strings = ["native", "ort"])
    fun `an exception of the listener comes through`(engine: String) = NANO.open(engine).use { model ->
        val session = model.session()
        val error = assertThrows(IllegalStateException::class.java) {
            session.generateBlocking("Once", GenerateOptions(maxTokens = 9)) { throw IllegalStateException("mine") }
        }
        assertEquals("mine", error.message)
        assertEquals(3, ids(collect(session, "Once", GenerateOptions(maxTokens = 3))).size)
    }

    @Test
    fun `a text without tokens is refused`() = NANO.open("ort").use { model ->
        assertThrows(UsageException::class.java) { runBlocking { model.session().generateTokens(IntArray(0)).collect() } }
        assertThrows(UsageException::class.java) { runBlocking { model.session().generateTokens(intArrayOf(4096)).collect() } }
        assertNull(model.session().stats)
    }

    @Test
    fun `sessions of several threads`() = NANO.open("ort").use { model ->
        val story = golden.list("stories")[0]
        val found = List(3) { ArrayList<Int>() }
        found.map { tokens -> thread { tokens += ids(collect(model.session(), story.text("prompt"), GenerateOptions(maxTokens = 48))) } }.forEach(Thread::join)
        found.forEach { assertEquals(story.ints("tokens"), it) }
    }
}
