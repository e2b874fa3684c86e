package org.edgedec

/** The exceptions of this library. The message is one line: what was wrong, where, what to do. */
open class EdgedecException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** There is no bundle or file at a path. */
class NotFoundException(message: String) : EdgedecException(message)

/** A bundle or file that is damaged, malformed or of another version. */
class CorruptException(message: String, cause: Throwable? = null) : EdgedecException(message, cause)

/** A bundle that reaches out of its folder. */
class UnsafeException(message: String) : EdgedecException(message)

/** An operation that this build, device or engine does not support. */
class UnavailableException(message: String, cause: Throwable? = null) : EdgedecException(message, cause)

/** An option out of range. */
class UsageException(message: String) : EdgedecException(message)

/** A prompt that does not fit into the context. */
class ContextFullException(message: String) : EdgedecException(message)

/** A saved session that cannot be loaded here. */
class SessionException(message: String, cause: Throwable? = null) : EdgedecException(message, cause)

/** A tokenizer or a chat template that this library cannot read. */
class TextException(message: String, cause: Throwable? = null) : EdgedecException(message, cause)

/** A generation that [Session.cancel] ended, or an import that was stopped. */
class CancelledException(message: String) : EdgedecException(message)
