package org.edgedec

import java.io.ByteArrayOutputStream
import java.io.PrintStream
import org.edgedec.examples.Story
import org.edgedec.examples.main as story
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** The programs of examples/kotlin and examples/java. */
class ExamplesTest {
    private fun said(run: () -> Unit): String {
        val out = ByteArrayOutputStream()
        val before = System.out
        System.setOut(PrintStream(out, true, "UTF-8"))
        try {
            run()
        } finally {
            System.setOut(before)
        }
        return out.toString("UTF-8")
    }

    @Test
    fun `they tell nano's story`() {
        val arguments = arrayOf(NANO.folder.path, "Once upon a time")
        val told = said { story(arguments) }
        assertTrue(told.startsWith("Once upon a time, there was a little girl named Lily"), told)
        assertTrue(told.length > 400, told)
        assertEquals(told, said { Story.main(arguments) })
    }
}
