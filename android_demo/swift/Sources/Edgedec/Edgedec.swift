// On-device LLM inference over libedgedec. Untried: written against edgedec.h, not compiled yet.
//
//     let model = try Model(path: "nano")
//     for try await token in try model.session().generate("Once upon a time") { print(token.text, terminator: "") }
import CEdgedec
import Foundation

public struct EdgedecError: Error, CustomStringConvertible {
    public let status: Int32
    public let description: String
}

public struct Token: Sendable {
    public let id: Int32
    public let text: String
    public let drafted: Bool
}

public struct Sampling: Sendable {
    public var temperature = 0.0
    public var topP = 1.0
    public var topK: Int32 = 0
    public var repetitionPenalty = 1.0
    public var seed: UInt64?

    public init() {}
}

private func check(_ status: Int32) throws {
    if status != EDGEDEC_OK.rawValue {
        throw EdgedecError(status: status, description: String(cString: edgedec_last_error()))
    }
}

/// An open bundle: a folder, or a file of `edgedec pack`.
public final class Model: @unchecked Sendable {
    let handle: OpaquePointer

    public init(path: String, threads: Int32 = 0, kv: String? = nil) throws {
        var options = edgedec_open_options()
        edgedec_open_options_init(&options, MemoryLayout<edgedec_open_options>.size)
        options.threads = threads
        var made: OpaquePointer?
        if let kv {
            try kv.withCString { format in
                options.kv = format
                try check(edgedec_open(path, &options, &made))
            }
        } else {
            try check(edgedec_open(path, &options, &made))
        }
        handle = made!
    }

    deinit { edgedec_close(handle) }

    /// For a memory warning: frees memory that can be rebuilt.
    public func trim() throws { try check(edgedec_trim(handle)) }

    public func session(drafts: String = "auto") throws -> Session { try Session(self, drafts: drafts) }
}

/// One text and its cache; one generation at a time.
public final class Session: @unchecked Sendable {
    private let model: Model  // the library keeps the model as long as its sessions; this keeps its Swift object
    private let handle: OpaquePointer

    init(_ model: Model, drafts: String) throws {
        self.model = model
        var options = edgedec_session_options()
        edgedec_session_options_init(&options, MemoryLayout<edgedec_session_options>.size)
        var made: OpaquePointer?
        try drafts.withCString { names in
            options.speculate = names
            try check(edgedec_session_new(model.handle, &options, &made))
        }
        handle = made!
    }

    deinit { edgedec_session_free(handle) }

    public func save(to path: String) throws { try check(edgedec_session_save(handle, path)) }

    public func load(from path: String) throws { try check(edgedec_session_load(handle, path)) }

    /// The tokens that follow a prompt (nil: the session's text). Ending the loop early cancels the generation.
    public func generate(_ prompt: String?, maxTokens: Int32 = -1, sampling: Sampling = Sampling()) -> AsyncThrowingStream<Token, Error> {
        AsyncThrowingStream { continuation in
            let work = Task.detached { [self] in
                do {
                    try run(prompt, maxTokens, sampling, continuation)
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            continuation.onTermination = { [self] reason in
                if case .cancelled = reason { edgedec_cancel(handle) }
                work.cancel()
            }
        }
    }

    private func run(_ prompt: String?, _ maxTokens: Int32, _ sampling: Sampling, _ to: AsyncThrowingStream<Token, Error>.Continuation) throws {
        var drawn = edgedec_sampling()
        edgedec_sampling_init(&drawn, MemoryLayout<edgedec_sampling>.size)
        drawn.temperature = sampling.temperature
        drawn.top_p = sampling.topP
        drawn.top_k = sampling.topK
        drawn.repetition_penalty = sampling.repetitionPenalty
        drawn.seeded = sampling.seed == nil ? 0 : 1
        drawn.seed = sampling.seed ?? 0
        var options = edgedec_generate_options()
        edgedec_generate_options_init(&options, MemoryLayout<edgedec_generate_options>.size)
        options.max_tokens = maxTokens
        options.text = 1
        let box = Unmanaged.passRetained(Box(to))
        defer { box.release() }
        options.token_user = box.toOpaque()
        options.on_token = { user, token in
            let box = Unmanaged<Box>.fromOpaque(user!).takeUnretainedValue()
            let t = token!.pointee
            let text = t.text.map { String(decoding: UnsafeRawBufferPointer(start: $0, count: t.text_bytes), as: UTF8.self) } ?? ""
            if case .terminated = box.to.yield(Token(id: t.id, text: text, drafted: t.drafted != 0)) { return 1 }
            return 0
        }
        try withUnsafePointer(to: &drawn) { pointer in
            options.sampling = pointer
            if let prompt {
                try check(edgedec_generate_text(handle, prompt, &options, nil))
            } else {
                try check(edgedec_generate(handle, nil, 0, &options, nil))
            }
        }
    }

    private final class Box {
        let to: AsyncThrowingStream<Token, Error>.Continuation
        init(_ to: AsyncThrowingStream<Token, Error>.Continuation) { self.to = to }
    }
}
