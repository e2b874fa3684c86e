package org.edgedec.demo

import android.content.Context
import org.edgedec.OpenOptions

/** The user's settings, kept between starts. [engine] "": the best one available; [threads] 0: automatic. */
data class Settings(val bundle: String = NANO, val engine: String = "", val threads: Int = 0, val drafts: Boolean = true, val chats: Boolean = false) {
    fun open() = OpenOptions(engine = engine.ifEmpty { null }, threads = threads)

    fun save(context: Context) = preferences(context).edit()
        .putString("bundle", bundle).putString("engine", engine).putInt("threads", threads).putBoolean("drafts", drafts).putBoolean("chats", chats).apply()

    companion object {
        const val NANO = "nano"

        fun of(context: Context): Settings {
            val p = preferences(context)
            val otherwise = Settings()
            return Settings(
                p.getString("bundle", otherwise.bundle)!!, p.getString("engine", otherwise.engine)!!, p.getInt("threads", otherwise.threads),
                p.getBoolean("drafts", otherwise.drafts), p.getBoolean("chats", otherwise.chats),
            )
        }

        private fun preferences(context: Context) = context.getSharedPreferences("settings", Context.MODE_PRIVATE)
    }
}
