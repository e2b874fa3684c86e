plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "org.edgedec.demo"
    compileSdk = 35
    defaultConfig {
        applicationId = "org.edgedec.demo"
        minSdk = 26
        targetSdk = 35
        versionCode = 1
        versionName = "0.1.0"
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
        externalNativeBuild { cmake { arguments("-DANDROID_STL=c++_static", "-DANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES=ON") } }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
    kotlinOptions { jvmTarget = "1.8" }
    sourceSets["main"].apply {
        kotlin.srcDir("src/main/kotlin")
        assets.srcDir(layout.buildDirectory.dir("assets"))
    }
    // libedgedec and its JNI functions, from source.
    externalNativeBuild { cmake { path = file("src/main/cpp/CMakeLists.txt") } }
    packaging { jniLibs { useLegacyPackaging = false } }
}

dependencies {
    implementation(project(":edgedec-kotlin"))
    implementation("org.jetbrains.kotlinx:kotlinx-coroutines-android:1.10.2")
    implementation("com.microsoft.onnxruntime:onnxruntime-android:1.24.2")
}

val nano = tasks.register<Copy>("nano") {
    from(rootDir.resolve("../models/nano/bundle"))
    into(layout.buildDirectory.dir("assets/nano"))
}
tasks.named("preBuild") { dependsOn(nano) }
