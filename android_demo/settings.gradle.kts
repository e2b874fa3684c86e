// For Android Studio and for machines that reach Google's repository; android_demo/build.py needs neither.
pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}
dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
    }
}
rootProject.name = "edgedec-android"
include(":edgedec-kotlin", ":app")
