#include "faults.h"

#include <charconv>
#include <sstream>
#include <string_view>
#include <vector>

#include "errors.h"
#include "ops.h"

namespace meshrun::emu {
namespace {

class Reader {
 public:
  Reader(const char* text, const Machine& machine) : machine_(machine) {
    std::istringstream in(text);
    for (std::string word; in >> word;) words_.push_back(word);
    for (const std::string& w : words_) text_ += (text_.empty() ? "" : " ") + w;
  }
  const std::string& text() const { return text_; }
  bool done() const { return at_ == words_.size(); }
  std::string next(const char* wanted) {
    if (done()) throw bad(format("ends where %s should stand", wanted).c_str());
    return words_[at_++];
  }
  void expect(const char* word) {
    const std::string got = next(word);
    if (got != word) throw bad(format("\"%s\" stands where \"%s\" should", got.c_str(), word).c_str());
  }
  // Takes the next word if it is this one.
  bool take(const char* word) {
    if (done() || words_[at_] != word) return false;
    ++at_;
    return true;
  }
  bool ahead(char first) const { return !done() && words_[at_].front() == first; }
  uint64_t count(const char* what, size_t skip = 0) {
    const std::string word = next(what).substr(skip);
    uint64_t n = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (code != std::errc{} || end != word.data() + word.size() || n == 0)
      throw bad(format("%s is \"%s\": must be a whole number from 1", what, word.c_str()).c_str());
    return n;
  }
  void at_launch(Fault& fault) {
    expect("at");
    expect("launch");
    fault.launch = count("launch");
  }
  // [d0,d1,...]; there may be blanks in it.
  Shape shape() {
    std::string all = next("a shape");
    while (all.back() != ']' && !done()) all += next("a shape");
    const auto no_shape = [&](const char* why) { return bad(format("shape is %s: %s", all.c_str(), why).c_str()); };
    Shape s;
    const char *at = all.data(), *const last = at + all.size();
    bool whole = *at == '[';
    for (uint32_t rank = 0; whole && *at != ']'; ++rank) {
      uint32_t dim = 0;
      const auto [behind, code] = std::from_chars(at + 1, last, dim);
      whole = code == std::errc{} && behind != last && (*behind == ',' || *behind == ']');
      if (!whole) break;
      if (rank == MR_MAX_RANK) throw no_shape(format("the rank must be 1..%d", MR_MAX_RANK).c_str());
      if (dim == 0) throw no_shape("every dim must be at least 1");
      s.dims[s.rank++] = dim;
      at = behind;
    }
    if (!whole || at + 1 != last) throw no_shape("must be like [1,1,32,96]");
    if (!fits_device(s)) throw no_shape("too large");
    return s;
  }
  void end() {
    if (!done()) throw bad(format("\"%s\" stands behind the end", next("").c_str()).c_str());
  }
  uint64_t duration_ns() {
    const std::string word = next("a duration");
    uint64_t n = 0;
    const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), n);
    const std::string_view unit(end, static_cast<size_t>(word.data() + word.size() - end));
    const uint64_t scale = unit == "ns" ? 1 : unit == "us" ? 1'000 : unit == "ms" ? 1'000'000 : unit == "s" ? 1'000'000'000 : 0;
    if (code != std::errc{} || scale == 0 || n > UINT64_MAX / 4 / 1'000'000'000)
      throw bad(format("\"%s\" is no duration: like 5ms, 40us", word.c_str()).c_str());
    return n * scale;
  }
  uint32_t device() {
    const std::string word = next("a device R,C");
    uint32_t row = 0, col = 0;
    const char *begin = word.data(), *end = begin + word.size();
    const auto r = std::from_chars(begin, end, row);
    const bool comma = r.ec == std::errc{} && r.ptr != end && *r.ptr == ',';
    const auto c = comma ? std::from_chars(r.ptr + 1, end, col) : r;
    if (!comma || c.ec != std::errc{} || c.ptr != end) throw bad(format("\"%s\" is no device: like 1,2", word.c_str()).c_str());
    if (row >= machine_.rows || col >= machine_.cols)
      throw bad(format("device %s is outside the mesh of %ux%u", word.c_str(), machine_.rows, machine_.cols).c_str());
    return row * machine_.cols + col;
  }
  Error bad(const char* why) const { return error(MR_INVALID_ARGUMENT, "fault \"%s\": %s", text_.c_str(), why); }
  Error unsupported() const { return error(MR_UNSUPPORTED, "fault \"%s\": not supported yet", text_.c_str()); }

 private:
  const Machine& machine_;
  std::vector<std::string> words_;
  std::string text_;
  size_t at_ = 0;
};

bool one_of(const std::string& word, std::initializer_list<const char*> words) {
  for (const char* w : words)
    if (word == w) return true;
  return false;
}

Fault op_fault(Reader& in, Fault fault) {
  fault.op = in.next("an operation");
  if (!is_op(fault.op)) throw in.bad(format("\"%s\" is no operation: its name is that of the calls in a row's effects, such as all_gather or binary", fault.op.c_str()).c_str());
  if (in.take("axis")) {
    const std::string axis = in.next("an axis");
    if (axis != "0" && axis != "1") throw in.bad(format("axis is \"%s\": must be 0 or 1", axis.c_str()).c_str());
    fault.axis = axis == "1";
  }
  if (in.ahead('#')) fault.launch = in.count("#N", 1);
  const std::string verb = in.next("hang, fail or delay");
  if (one_of(verb, {"throw", "exit", "oom"})) throw in.unsupported();
  if (!one_of(verb, {"hang", "fail", "delay"})) throw in.bad(format("\"%s\" stands where hang, fail or delay should", verb.c_str()).c_str());
  fault.kind = verb == "hang" ? Fault::Kind::op_hang : verb == "fail" ? Fault::Kind::op_fail : Fault::Kind::op_delay;
  if (verb == "delay") fault.delay_ns = in.duration_ns();
  in.end();
  return fault;
}

}  // namespace

Fault parse_fault(const char* text, const Machine& machine) {
  if (text == nullptr) throw error(MR_INVALID_ARGUMENT, "fault: text is NULL");
  Reader in(text, machine);
  Fault fault;
  fault.text = in.text();
  const std::string subject = in.next("a fault");
  if (subject == "op") return op_fault(in, std::move(fault));
  if (one_of(subject, {"link", "increment", "semaphore", "memory", "actor", "message", "random"})) throw in.unsupported();
  if (subject == "barrier") {
    in.expect("drop");
    fault.kind = Fault::Kind::barrier_drop;
    in.at_launch(fault);
    in.end();
    return fault;
  }
  if (subject != "device") throw in.bad(format("unknown kind \"%s\"", subject.c_str()).c_str());
  fault.device = in.device();
  const std::string verb = in.next("delay or stop");
  if (verb == "shape") {
    fault.kind = Fault::Kind::shape;
    fault.shape = in.shape();
    in.at_launch(fault);
    in.end();
    return fault;
  }
  if (verb == "late") {
    in.expect("allocation");
    fault.kind = Fault::Kind::late_allocation;
    fault.delay_ns = in.duration_ns();
    in.end();
    return fault;
  }
  if (verb == "swap") {
    in.expect("launch");
    fault.kind = Fault::Kind::swap;
    fault.launch = in.count("launch");
    in.expect("and");
    fault.other = in.count("launch");
    if (fault.launch == fault.other) throw in.bad("swaps a launch with itself");
    in.end();
    return fault;
  }
  if (verb == "delay") {
    fault.kind = Fault::Kind::delay;
    fault.delay_ns = in.duration_ns();
  } else if (verb != "stop") {
    throw in.bad(format("\"%s\" stands where delay or stop should", verb.c_str()).c_str());
  }
  if (verb == "stop" || !in.done()) in.at_launch(fault);
  in.end();
  return fault;
}

}  // namespace meshrun::emu
