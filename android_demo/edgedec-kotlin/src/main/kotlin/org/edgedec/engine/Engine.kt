package org.edgedec.engine

import java.io.File
import org.edgedec.Drafts
import org.edgedec.GenerateOptions
import org.edgedec.OpenOptions
import org.edgedec.Stats
import org.edgedec.bundle.Bundle

/** What runs bundles on this device. */
interface Engine {
    val name: String

    /** Null if it can open the bundle here, else the reason in one line. */
    fun unavailable(bundle: Bundle): String?

    fun open(bundle: Bundle, options: OpenOptions): EngineModel
}

/** A bundle that an engine has opened. May be used by any number of threads. */
interface EngineModel : AutoCloseable {
    val threads: Int
    val kv: String

    /** What of the processor is used, such as an instruction set. */
    val device: String

    fun text(context: Int, drafts: Drafts): EngineText

    /** Gives up what can be made again: idle prefixes, working memory. */
    fun trim()
}

/** One text and its cache. For one thread at a time; [cancel] may be called beside. */
interface EngineText : AutoCloseable {
    val capacity: Int
    val length: Int

    fun tokens(): IntArray

    /**
     * The tokens that follow [prompt], which is the whole text (null: that of before), one after another to [sink]. What
     * the prompt shares with the text of before is not computed again.
     */
    fun generate(prompt: IntArray?, options: GenerateOptions, sink: TokenSink): Stats

    fun truncate(length: Int)

    fun cancel()

    fun fork(): EngineText

    fun save(file: File)

    fun load(file: File)
}

/** Takes a token; false ends the generation after it. */
interface TokenSink {
    fun accept(id: Int, drafted: Boolean): Boolean

    /** Of the prompt so many tokens were read; false ends the generation. */
    fun prompt(done: Int, total: Int): Boolean = true
}
