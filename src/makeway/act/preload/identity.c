// Which sources this library was compiled from: read from the file by prebuilt.py, never called.
#ifndef MAKEWAY_SOURCES
#define MAKEWAY_SOURCES "not given"
#endif

__attribute__((used)) static const char identity[] = "makeway-sources:" MAKEWAY_SOURCES;
