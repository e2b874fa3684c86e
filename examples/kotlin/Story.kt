// A story through the Kotlin library of android_demo/edgedec-kotlin, whose tests run this: BUNDLE "Once upon a time"
package org.edgedec.examples

import java.io.File
import kotlinx.coroutines.runBlocking
import org.edgedec.Drafts
import org.edgedec.Edgedec
import org.edgedec.GenerateOptions
import org.edgedec.SessionOptions

fun main(arguments: Array<String>) = runBlocking {
    val (bundle, prompt) = arguments
    Edgedec.open(File(bundle)).use { model ->
        print(prompt)
        model.session(SessionOptions(drafts = Drafts.AUTO)).generate(prompt, GenerateOptions(maxTokens = 150)).collect { print(it.text) }
        println()
    }
}
