package org.edgedec.demo

import android.app.Application
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob

class DemoApp : Application() {
    val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main.immediate)
    lateinit var teller: Teller
        private set

    override fun onCreate() {
        super.onCreate()
        teller = Teller(this, scope)
        teller.start()
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        if (level >= TRIM_MEMORY_BACKGROUND || level == TRIM_MEMORY_RUNNING_CRITICAL) teller.trim()
    }

    private companion object {
        // Levels of ComponentCallbacks2; the second is deprecated but still sent by older Androids.
        const val TRIM_MEMORY_BACKGROUND = 40
        const val TRIM_MEMORY_RUNNING_CRITICAL = 15
    }
}
