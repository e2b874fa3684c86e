package org.edgedec.demo

import android.app.Activity
import android.app.Notification
import android.app.NotificationManager
import android.app.job.JobParameters
import android.content.ComponentCallbacks2
import android.content.pm.PackageManager
import android.graphics.Bitmap
import android.graphics.Canvas
import android.net.Uri
import android.os.Looper
import android.text.Spanned
import android.text.style.UnderlineSpan
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.EditText
import android.widget.ListView
import android.widget.Spinner
import android.widget.Switch
import android.widget.TextView
import java.io.ByteArrayOutputStream
import java.io.File
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
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
import org.robolectric.shadow.api.Shadow

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
            val main = shadowOf(Looper.getMainLooper())
            if (main.isIdle) Thread.sleep(1) else main.runOneTask()
        }
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
        assertTrue(view.width > 400 && view.height > 800)
        val bitmap = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)
        view.draw(Canvas(bitmap))
        val file = File(System.getProperty("edgedec.screenshots"), name)
        file.outputStream().use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        val colours = (0 until view.height step 4).flatMap { y -> (0 until view.width step 4).map { x -> bitmap.getPixel(x, y) } }.toSet()
        assertTrue("text was drawn", colours.size > 8)
    }

    /** All views below one, itself included. */
    private fun all(view: View): List<View> = listOf(view) + ((view as? ViewGroup)?.let { group -> (0 until group.childCount).flatMap { all(group.getChildAt(it)) } }.orEmpty())

    /** What TalkBack reads of a view; null: nothing. */
    private fun read(view: View): String? {
        val node = view.createAccessibilityNodeInfo()
        return listOf(view.contentDescription, node.text, node.hintText).firstOrNull { !it.isNullOrBlank() }?.toString()
    }

    @Test
    fun `whatever can be pressed or written to has a name for TalkBack, and is large enough`() {
        val activity = Robolectric.buildActivity(MainActivity::class.java).setup().get()
        say(activity, "Once upon a time")
        ended()
        val settings = activity.layoutInflater.inflate(R.layout.settings, null)
        settings.measure(View.MeasureSpec.makeMeasureSpec(800, View.MeasureSpec.EXACTLY), View.MeasureSpec.makeMeasureSpec(0, View.MeasureSpec.UNSPECIFIED))
        settings.layout(0, 0, settings.measuredWidth, settings.measuredHeight)
        val screen = activity.findViewById<View>(android.R.id.content)!!
        val controls = (all(screen) + all(settings)).filter { it is Button || it is EditText || it is Spinner || it is Switch }
        assertEquals(1 + 1 + 3 + 2, controls.size)
        val least = 48 * activity.resources.displayMetrics.density - 1
        for (control in controls) {
            assertTrue("${control.javaClass.simpleName} has no name", read(control) != null)
            assertTrue("${read(control)}: ${control.height} pixels", control is EditText || control.height >= least)
        }
        val turns = all(activity.findViewById(R.id.messages)!!).filterIsInstance<TextView>()
        assertEquals(2, turns.size)
        assertTrue(turns.all { read(it)!!.startsWith("You: ") || read(it)!!.startsWith("Model: ") })
        assertEquals(View.ACCESSIBILITY_LIVE_REGION_POLITE, activity.findViewById<View>(R.id.status)!!.accessibilityLiveRegion)
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
    fun `a job summarises what waits`() {
        val waiting = File(SummaryJob.folder(app), "tale.txt.waiting").also { it.writeText("The little fox went to the park. ".repeat(20)) }
        val job = Robolectric.buildService(SummaryJob::class.java).create().get()
        assertTrue(job.onStartJob(Shadow.newInstanceOf(JobParameters::class.java)))
        until("the job is finished") { shadowOf(job).isJobFinished }
        assertFalse("it is done, not to be done again", shadowOf(job).isRescheduleNeeded)
        assertFalse(waiting.exists())
        assertTrue(File(SummaryJob.folder(app), "tale.txt.summary.txt").readText().isNotBlank())
    }

    private val notices get() = shadowOf(app.getSystemService(NotificationManager::class.java))

    private fun notice(): android.os.Bundle = requireNotNull(notices.getNotification(Imports.ID)).extras

    private fun zipped(): ByteArray {
        val out = ByteArrayOutputStream()
        ZipOutputStream(out).use { zip ->
            File(app.filesDir, "bundles/nano").listFiles()!!.forEach { file ->
                zip.putNextEntry(ZipEntry(file.name))
                file.inputStream().use { it.copyTo(zip) }
            }
        }
        return out.toByteArray()
    }

    @Test
    fun `a bundle in a zip file is imported, shown as it goes, and opened`() {
        val zip = File(app.cacheDir, "fox tales.zip").also { it.writeBytes(zipped()) }
        Imports(app).start(Uri.fromFile(zip), zip.name)
        assertEquals("a bar shows how far it is", 100, notice().getInt(Notification.EXTRA_PROGRESS_MAX))
        until("it is open") { teller.settings.bundle == "fox_tales" && teller.shown.value.status is Status.Ready }
        assertEquals(0, notice().getInt(Notification.EXTRA_PROGRESS_MAX))
        assertTrue("fox_tales" in notice().getCharSequence(Notification.EXTRA_TITLE)!!)
        Bundle.open(File(app.filesDir, "bundles/fox_tales")).verify()
    }

    @Test
    fun `a damaged zip file is refused by name, and leaves nothing`() {
        val zip = File(app.cacheDir, "cut.zip").also { it.writeBytes(zipped().copyOf(2_000_000)) }
        Imports(app).start(Uri.fromFile(zip), zip.name)
        until("it is refused") { notice().getInt(Notification.EXTRA_PROGRESS_MAX) == 0 }
        assertTrue(notice().getCharSequence(Notification.EXTRA_TITLE)!!.startsWith("cut"))
        assertEquals(listOf("nano"), File(app.filesDir, "bundles").list()!!.toList())
        assertEquals("nano", teller.settings.bundle)
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
