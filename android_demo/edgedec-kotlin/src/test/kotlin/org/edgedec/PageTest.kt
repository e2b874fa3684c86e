package org.edgedec

import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test

/** The block of docs/android.md, word for word; tests/readme/test_other_blocks.py compares them. */
class PageTest {
    @Suppress("TestFunctionName", "UNUSED_PARAMETER")
    private fun File(path: String) = java.io.File(System.getProperty("edgedec.nano"))

    @Test
    fun `the page's program runs`() = runBlocking {
        Edgedec.open(File("nano")).use { model ->
            val session = model.session(SessionOptions(drafts = Drafts.AUTO))
            session.generate("Once upon a time", GenerateOptions(maxTokens = 200, sampling = model.sampling))
                .collect { token -> print(token.text) }
            println(session.stats)
        }
    }
}
