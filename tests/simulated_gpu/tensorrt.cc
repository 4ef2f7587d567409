// TensorRT's library as far as Collage opens it itself: for its version.
extern "C" int getInferLibVersion() { return 101303; }
