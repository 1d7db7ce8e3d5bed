// Which sources this library was compiled from: read from the file by prebuilt.py, never called.
#ifndef SHIM_SOURCES
#define SHIM_SOURCES "not given"
#endif

__attribute__((used)) static const char identity[] = "makeway-sources:" SHIM_SOURCES;
