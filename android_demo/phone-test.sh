#!/bin/sh
# What only a phone can show, in ten minutes: sh android_demo/phone-test.sh [edgedec-demo.apk]. Needs adb and one device.
# Reads and presses by what is on the screen (uiautomator), and says PASS or FAIL line by line.
set -u
APK=${1:-$(dirname "$0")/build/edgedec-demo.apk}
APP=org.edgedec.demo
FAILED=0
say() { if [ "$2" = 0 ]; then echo "PASS $1"; else echo "FAIL $1"; FAILED=1; fi; }
screen() { adb shell uiautomator dump /sdcard/screen.xml > /dev/null 2>&1; adb shell cat /sdcard/screen.xml; }
shows() { i=0; while [ $i -lt "$2" ]; do screen | grep -q "$1" && return 0; i=$((i + 1)); sleep 1; done; return 1; }
press() {  # the middle of the node with this text
    set -- $(screen | tr '>' '\n' | grep -m1 "text=\"$1\"" | sed 's/.*bounds="\[\([0-9]*\),\([0-9]*\)\]\[\([0-9]*\),\([0-9]*\)\]".*/\1 \2 \3 \4/')
    [ $# = 4 ] && adb shell input tap $((($1 + $3) / 2)) $((($2 + $4) / 2))
}

adb get-state > /dev/null || { echo "no device: connect one and allow debugging"; exit 2; }
echo "device: $(adb shell getprop ro.product.model), Android $(adb shell getprop ro.build.version.release), page $(adb shell getconf PAGE_SIZE)"
adb install -r "$APK" > /dev/null; say "installs" $?
adb shell dumpsys package $APP | grep -q android.permission.INTERNET; [ $? != 0 ]; say "asks for no network" $?
adb shell pm clear $APP > /dev/null
adb shell am start -W -n $APP/.MainActivity | grep -E "TotalTime"
shows "threads" 60; say "unpacks and opens nano" $?
press "Begin a story, or say hello"; adb shell input text "Once%supon%sa%stime"; press Send || press SEND
shows "tokens/s" 120; say "tells a story" $?
screen | tr '>' '\n' | grep -o 'text="[^"]*tokens/s[^"]*"'
adb shell settings put system accelerometer_rotation 0; adb shell settings put system user_rotation 1; sleep 3
shows "Once upon a time" 10; say "keeps its text when it is turned" $?
adb shell settings put system user_rotation 0
adb shell input keyevent HOME; sleep 2; adb shell am kill $APP; sleep 2; adb shell am start -W -n $APP/.MainActivity > /dev/null
shows "Once upon a time" 60; say "keeps its text when its process is killed" $?
adb shell am send-trim-memory $APP RUNNING_CRITICAL 2> /dev/null; press Send || press SEND; shows "tokens/s" 120; say "goes on after its memory was trimmed" $?
adb shell cmd uimode night yes > /dev/null; sleep 3; adb exec-out screencap -p > phone-night.png; say "night: look at phone-night.png" $?
adb shell cmd uimode night auto > /dev/null
adb shell dumpsys meminfo $APP | grep -E "TOTAL PSS"
adb logcat -d -t 2000 | grep -E "FATAL EXCEPTION|SIGSEGV|SIGABRT" | grep -q $APP; [ $? != 0 ]; say "no crash in the log" $?
echo "By hand: TalkBack reads each turn with its speaker; import a bundle as zip and cut it off half-way; summarise a file with the screen off."
exit $FAILED
