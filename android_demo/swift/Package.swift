// swift-tools-version:5.9
// Untried: no Swift toolchain has compiled it yet. libedgedec (kernels/lib) has to be installed where pkg-config finds it.
import PackageDescription

let package = Package(
    name: "Edgedec",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "Edgedec", targets: ["Edgedec"])],
    targets: [
        .systemLibrary(name: "CEdgedec", pkgConfig: "edgedec"),
        .target(name: "Edgedec", dependencies: ["CEdgedec"]),
    ]
)
