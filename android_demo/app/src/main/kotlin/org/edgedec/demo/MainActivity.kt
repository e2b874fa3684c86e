package org.edgedec.demo

import android.app.Activity
import android.content.Intent
import android.net.Uri
import android.os.Bundle
import android.provider.OpenableColumns
import android.view.Menu
import android.view.MenuItem
import android.view.View
import android.widget.Button
import android.widget.EditText
import android.widget.ListView
import android.widget.TextView
import android.widget.Toast
import kotlinx.coroutines.Job
import kotlinx.coroutines.launch

/** The only screen. Its state is in [Teller], which outlives it. */
class MainActivity : Activity() {
    private val app get() = application as DemoApp
    private val teller get() = app.teller
    private lateinit var list: MessageList
    private lateinit var input: EditText
    private lateinit var go: Button
    private lateinit var status: TextView
    private var watching: Job? = null

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        setContentView(R.layout.main)
        list = MessageList(teller.conversation)
        find<ListView>(R.id.messages).adapter = list
        input = find(R.id.input)
        go = find(R.id.go)
        status = find(R.id.status)
        go.setOnClickListener { pressed() }
        input.setOnEditorActionListener { _, _, _ -> pressed().let { true } }
    }

    private fun <T : View> find(id: Int): T = requireNotNull(findViewById<T>(id))

    override fun onStart() {
        super.onStart()
        watching = app.scope.launch { teller.shown.collect(::show) }
    }

    override fun onStop() {
        watching?.cancel()
        super.onStop()
    }

    private fun pressed() {
        if (teller.shown.value.busy) return teller.stop()
        teller.say(input.text.toString())
        input.text.clear()
    }

    private fun show(shown: Shown) {
        list.notifyDataSetChanged()
        status.text = words(shown.status)
        go.setText(if (shown.busy) R.string.stop else R.string.send)
    }

    private fun words(s: Status): String = when (s) {
        is Status.Preparing -> getString(R.string.preparing, s.name, s.percent)
        is Status.Opening -> getString(R.string.opening, s.name)
        is Status.Ready -> getString(R.string.ready, s.name, s.engine, s.threads, s.device)
        is Status.Writing -> getString(R.string.writing)
        is Status.Ended -> getString(R.string.speed, s.stats.tokensPerSecond, s.stats.generated, s.stats.accepted, s.stats.promptSeconds * 1000)
        is Status.Failed -> s.message
    }

    override fun onCreateOptionsMenu(menu: Menu): Boolean {
        menuInflater.inflate(R.menu.main, menu)
        return true
    }

    override fun onOptionsItemSelected(item: MenuItem): Boolean {
        when (item.itemId) {
            R.id.new_chat -> teller.clear()
            R.id.settings -> SettingsDialog(this, teller).show()
            R.id.import_bundle -> choose("*/*", IMPORT)
            R.id.summarise -> choose("text/*", SUMMARISE)
            else -> return super.onOptionsItemSelected(item)
        }
        return true
    }

    private fun choose(type: String, code: Int) {
        if (android.os.Build.VERSION.SDK_INT >= 33) requestPermissions(arrayOf("android.permission.POST_NOTIFICATIONS"), 0)
        startActivityForResult(Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType(type), code)
    }

    override fun onActivityResult(code: Int, result: Int, data: Intent?) {
        val file = data?.data ?: return
        if (result != RESULT_OK) return
        if (code == IMPORT) Imports(app).start(file, nameOf(file))
        if (code == SUMMARISE) app.scope.launch {
            SummaryJob.queue(app, file, nameOf(file))
            Toast.makeText(app, R.string.queued, Toast.LENGTH_LONG).show()
        }
    }

    private fun nameOf(file: Uri): String = contentResolver.query(file, arrayOf(OpenableColumns.DISPLAY_NAME), null, null, null).use { found ->
        if (found != null && found.moveToFirst()) found.getString(0) else file.lastPathSegment.orEmpty()
    }

    private companion object {
        const val IMPORT = 1
        const val SUMMARISE = 2
    }
}
