package org.edgedec.demo

import android.app.Activity
import android.content.ComponentCallbacks2
import android.content.pm.PackageManager
import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Looper
import android.text.Spanned
import android.text.style.UnderlineSpan
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.ListView
import android.widget.TextView
import java.io.File
import kotlinx.coroutines.runBlocking
import org.edgedec.Edgedec
import org.edgedec.OpenOptions
import org.edgedec.bundle.Bundle
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNotEquals
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** The app on the JVM: Android's own framework, ONNX Runtime's desktop library, nano out of the assets. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], qualifiers = "w411dp-h891dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class AppTest {
    private val app get() = RuntimeEnvironment.getApplication() as DemoApp
    private val teller get() = app.teller

    @Before
    fun ready() = until("the model is open") { teller.shown.value.status is Status.Ready }

    /** Runs the main thread until something holds. */
    private fun until(what: String, holds: () -> Boolean) {
        val end = System.nanoTime() + 60_000_000_000
        while (!holds()) {
            check(System.nanoTime() < end) { "$what: not in a minute; ${teller.shown.value}" }
            shadowOf(Looper.getMainLooper()).idle()
            Thread.sleep(5)
        }
        shadowOf(Looper.getMainLooper()).idle()
    }

    private fun ended() = until("the answer has ended") { teller.shown.value.status is Status.Ended }

    private fun say(activity: Activity, text: String) {
        activity.findViewById<EditText>(R.id.input)!!.setText(text)
        activity.findViewById<Button>(R.id.go)!!.performClick()
    }

    private fun told(): String = teller.conversation.turns.last().text

    @Test
    fun `tells a story, marks drafts, names its speed`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        say(activity, "The cat sat on the mat. The dog sat on the mat. The cat sat on the")
        ended()
        assertTrue(told().length > 100)
        assertEquals(listOf(true, false), teller.conversation.turns.map { it.mine })
        assertTrue("something was drafted", teller.conversation.turns.last().drafted.isNotEmpty())
        val list = activity.findViewById<ListView>(R.id.messages)!!
        val row = list.adapter.getView(1, null, list) as TextView
        val spans = (row.text as Spanned).getSpans(0, row.text.length, UnderlineSpan::class.java)
        assertEquals(teller.conversation.turns.last().drafted.size, spans.size)
        assertTrue(row.contentDescription.startsWith("Model: "))
        assertTrue("tokens/s" in activity.findViewById<TextView>(R.id.status)!!.text)
        assertEquals("Send", activity.findViewById<Button>(R.id.go)!!.text)
        picture(activity, "story.png")
    }

    private fun picture(activity: Activity, name: String) {
        val view = activity.window.decorView
        view.measure(View.MeasureSpec.makeMeasureSpec(822, View.MeasureSpec.EXACTLY), View.MeasureSpec.makeMeasureSpec(1600, View.MeasureSpec.EXACTLY))
        view.layout(0, 0, 822, 1600)
        shadowOf(Looper.getMainLooper()).idle()
        val bitmap = Bitmap.createBitmap(822, 1600, Bitmap.Config.ARGB_8888)
        view.draw(Canvas(bitmap))
        val file = File(System.getProperty("edgedec.screenshots"), name)
        file.outputStream().use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        val colours = (0 until 1600 step 4).flatMap { y -> (0 until 822 step 4).map { x -> bitmap.getPixel(x, y) } }.toSet()
        assertTrue("text was drawn", colours.size > 8)
    }

    @Test
    @Config(qualifiers = "+night")
    fun `the dark theme is dark`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        assertEquals(0x1E3A36, activity.getColor(R.color.mine) and 0xffffff)
        say(activity, "Once upon a time")
        ended()
        picture(activity, "night.png")
    }

    @Test
    @Config(qualifiers = "+de")
    fun `German`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        assertEquals("Senden", activity.findViewById<Button>(R.id.go)!!.text)
    }

    @Test
    fun `rotation keeps a running generation`() {
        val controller = Robolectric.buildActivity(MainActivity::class.java).setup()
        say(controller.get(), "Once upon a time")
        until("it writes") { told().length > 20 && teller.shown.value.busy }
        controller.recreate()
        val activity = controller.get()
        assertEquals(2, activity.findViewById<ListView>(R.id.messages)!!.adapter.count)
        ended()
        assertTrue(activity.findViewById<TextView>(R.id.status)!!.text.contains("tokens/s"))
    }

    @Test
    fun `the stop button stops, and the story goes on from there`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        say(activity, "Once upon a time")
        until("it writes") { told().length > 20 && teller.shown.value.busy }
        assertEquals("Stop", activity.findViewById<Button>(R.id.go)!!.text)
        activity.findViewById<Button>(R.id.go)!!.performClick()
        until("it has stopped") { !teller.shown.value.busy }
        val before = teller.conversation.text()
        say(activity, "")
        ended()
        assertTrue(teller.conversation.text().startsWith(before))
        assertTrue(teller.conversation.text().length > before.length)
    }

    @Test
    fun `what a killed process left is there again`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        say(activity, "Once upon a time")
        ended()
        val text = teller.conversation.text()
        assertTrue(File(app.filesDir, "conversation.session").isFile)
        val next = Teller(app, app.scope)
        next.start()
        until("the next process is ready") { next.shown.value.status is Status.Ready }
        assertEquals(text, next.conversation.text())
        assertEquals(teller.conversation.turns.last().drafted, next.conversation.turns.last().drafted)
        File(app.filesDir, "conversation.json").writeText("[{")
        File(app.filesDir, "conversation.session").writeBytes(ByteArray(500))
        val broken = Teller(app, app.scope)
        broken.start()
        until("damaged files are no obstacle") { broken.shown.value.status is Status.Ready }
        assertEquals(0, broken.conversation.turns.size)
    }

    @Test
    fun `memory is given up in the background`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        @Suppress("DEPRECATION")
        app.onTrimMemory(ComponentCallbacks2.TRIM_MEMORY_BACKGROUND)
        say(activity, "Once upon a time")
        ended()
        assertTrue(told().isNotEmpty())
    }

    @Test
    fun `settings open the model anew`() {
        teller.change(teller.settings.copy(engine = "ort", threads = 2, drafts = false))
        until("it is open again") { (teller.shown.value.status as? Status.Ready)?.threads == 2 }
        teller.change(teller.settings.copy(engine = "native"))
        until("the engine opens or says why") { teller.shown.value.status.let { it is Status.Failed || it is Status.Ready && it.engine == "native" } }
    }

    @Test
    fun `a text file is summarised, part by part, and goes on after a stop`() = runBlocking {
        Edgedec.open(File(app.filesDir, "bundles/nano"), OpenOptions(engine = "ort")).use { model ->
            val file = File(app.filesDir, "long.waiting").also { it.writeText("The little fox went to the park. ".repeat(250)) }
            val out = File(app.filesDir, "long.summary.txt")
            val parts = Summary(model, file, out).parts(file.readText())
            assertTrue(parts.size > 1)
            assertEquals(file.readText(), parts.joinToString(""))
            File(file.path + ".parts").writeText("A part that was done before.")
            val seen = ArrayList<Int>()
            Summary(model, file, out).run { part, _ -> seen.add(part) }
            assertEquals((1 until parts.size).toList(), seen)
            assertTrue(out.readText().contains("A part that was done before."))
            assertFalse(File(file.path + ".parts").exists())
        }
    }

    @Test
    fun `jobs are queued, and no network is asked for`() {
        assertEquals(android.app.job.JobScheduler.RESULT_SUCCESS, SummaryJob.schedule(app))
        @Suppress("DEPRECATION")
        val info = app.packageManager.getPackageInfo(app.packageName, PackageManager.GET_PERMISSIONS)
        assertFalse(info.requestedPermissions.orEmpty().any { "INTERNET" in it || "NETWORK" in it })
        assertNotEquals("nano", Imports.plain("nano.zip"))
        assertEquals("a_b", Imports.plain("a b.zip"))
        Bundle.open(File(app.filesDir, "bundles/nano")).verify()
    }
}
