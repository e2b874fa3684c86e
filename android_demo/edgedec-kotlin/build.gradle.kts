plugins {
    id("org.jetbrains.kotlin.jvm")
}

group = "org.edgedec"
version = "0.1.0"

kotlin {
    compilerOptions {
        jvmTarget.set(org.jetbrains.kotlin.gradle.dsl.JvmTarget.JVM_1_8)
    }
}

java {
    sourceCompatibility = JavaVersion.VERSION_1_8
    targetCompatibility = JavaVersion.VERSION_1_8
}

dependencies {
    api("org.jetbrains.kotlinx:kotlinx-coroutines-core-jvm:1.10.2")
    api("org.jetbrains.kotlinx:kotlinx-serialization-json-jvm:1.9.0")
    compileOnly("com.microsoft.onnxruntime:onnxruntime:1.29.0")
}
