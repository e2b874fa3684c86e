package org.edgedec.engine

import java.io.File

/**
 * The functions of `edgedec_jni.c`, one for each of `edgedec.h` that is used. Errors arrive as exceptions of this library.
 * Strings cross as bytes of UTF-8, which JNI's own are not.
 */
internal object NativeLibrary {
    private const val ABI = 1

    /** Why it cannot be used; null if it can. On a desktop `org.edgedec.library` may name the folder of the two libraries. */
    val missing: String? by lazy {
        try {
            load()
            val found = abi()
            if (found == ABI) null else "libedgedec has ABI $found, this library needs $ABI; install both of one version"
        } catch (e: UnsatisfiedLinkError) {
            "libedgedec is not in this app: ${e.message?.lineSequence()?.first()}"
        }
    }

    private fun load() {
        val folder = System.getProperty("org.edgedec.library") ?: return System.loadLibrary("edgedec_jni")
        for (name in listOf("edgedec", "edgedec_jni")) {
            val file = File(folder, System.mapLibraryName(name))
            // The first is part of the second where they were linked into one.
            if (file.isFile || name == "edgedec_jni") System.load(file.absolutePath)
        }
    }

    fun open(path: String, threads: Int, kv: String?, bigCores: Boolean): Long = open(bytes(path), threads, kv?.let(::bytes), bigCores)

    fun modelString(model: Long, what: Int): String = modelBytes(model, what).decodeToString()

    fun newSession(model: Long, context: Int, drafters: String): Long = newSession(model, context, bytes(drafters))

    fun save(session: Long, path: String) = save(session, bytes(path))

    fun load(session: Long, path: String) = load(session, bytes(path))

    /** With the 0 that ends it in C. */
    private fun bytes(text: String): ByteArray = text.toByteArray() + 0

    @JvmStatic external fun abi(): Int

    @JvmStatic private external fun open(path: ByteArray, threads: Int, kv: ByteArray?, bigCores: Boolean): Long

    @JvmStatic external fun close(model: Long)

    @JvmStatic external fun threads(model: Long): Int

    @JvmStatic private external fun modelBytes(model: Long, what: Int): ByteArray

    @JvmStatic external fun trim(model: Long)

    @JvmStatic private external fun newSession(model: Long, context: Int, drafters: ByteArray): Long

    @JvmStatic external fun free(session: Long)

    @JvmStatic external fun fork(session: Long): Long

    @JvmStatic external fun context(session: Long): Int

    @JvmStatic external fun length(session: Long): Int

    @JvmStatic external fun tokens(session: Long): IntArray

    @JvmStatic external fun truncate(session: Long, length: Int)

    @JvmStatic external fun cancel(session: Long)

    @JvmStatic private external fun save(session: Long, path: ByteArray)

    @JvmStatic private external fun load(session: Long, path: ByteArray)

    /** ints: max, min, ignoreEos, topK, seeded. reals: the other settings in their order. Returns the fields of edgedec_result. */
    @JvmStatic
    external fun generate(
        session: Long, prompt: IntArray?, ints: IntArray, reals: DoubleArray, seed: Long, stopTokens: IntArray, biasTokens: IntArray, bias: FloatArray, sink: TokenSink,
    ): DoubleArray

    @JvmStatic external fun encode(model: Long, text: ByteArray, flags: Int): IntArray
}
