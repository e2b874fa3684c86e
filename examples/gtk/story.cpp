// A window that tells stories: libedgedec in a desktop program, with GTK 3.
//
//     c++ -std=c++17 story.cpp $(pkg-config --cflags --libs gtk+-3.0 edgedec) -pthread -o story && ./story models/nano/bundle
//
// The model computes on a thread of its own, and GTK is used on the main thread only: tokens get there through a queue that
// the main loop empties. Drafted tokens are underlined.
#include <edgedec.h>
#include <gtk/gtk.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace {

struct Close {
  void operator()(edgedec_model* model) const { edgedec_close(model); }
  void operator()(edgedec_session* session) const { edgedec_session_free(session); }
};

void check(int status) {
  if (status) throw std::runtime_error(edgedec_last_error());
}

struct Piece {
  std::string text;
  bool drafted;
};

// The model and its session. A story runs on a thread; pieces, and then how it ended, are taken by the main thread.
class Teller {
 public:
  explicit Teller(const char* path) {
    edgedec_model* opened = nullptr;
    check(edgedec_open(path, nullptr, &opened));
    model_.reset(opened);
    edgedec_session_options options;
    edgedec_session_options_init(&options, sizeof options);
    options.speculate = "auto", options.draft = 4;
    edgedec_session* made = nullptr;
    check(edgedec_session_new(opened, &options, &made));
    session_.reset(made);
  }
  ~Teller() { stop(); }

  void start(const std::string& prompt, double temperature) {
    stop();
    running_ = true, stopping_ = false;
    thread_ = std::thread([=] { run(prompt, temperature); });
  }
  // Ends the story after the forward call that runs.
  void stop() {
    stopping_ = true;
    edgedec_cancel(session_.get());
    if (thread_.joinable()) thread_.join();
  }
  bool running() const { return running_; }
  const char* name() const { return edgedec_model_string(model_.get(), EDGEDEC_NAME); }
  std::deque<Piece> take(std::string& words) {
    const std::lock_guard<std::mutex> lock(mutex_);
    words = words_;
    return std::exchange(pieces_, {});
  }

 private:
  static int add(void* user, const edgedec_token* token) {
    auto* self = static_cast<Teller*>(user);
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->pieces_.push_back({std::string(token->text, token->text_bytes), token->drafted != 0});
    return self->stopping_;
  }
  void run(const std::string& prompt, double temperature) {
    edgedec_sampling sampling;
    edgedec_sampling_init(&sampling, sizeof sampling);
    sampling.temperature = temperature;
    edgedec_generate_options options;
    edgedec_generate_options_init(&options, sizeof options);
    options.max_tokens = 400, options.text = 1, options.sampling = &sampling;
    options.on_token = add, options.token_user = this;
    edgedec_result result = {};
    result.size = sizeof result;
    const int status = edgedec_generate_text(session_.get(), prompt.c_str(), &options, &result);
    const std::lock_guard<std::mutex> lock(mutex_);
    words_ = status && status != EDGEDEC_CANCELLED ? edgedec_last_error() : told(result);
    running_ = false;
  }
  static std::string told(const edgedec_result& r) {
    const int speed = r.seconds > 0 ? (int)(r.generated / r.seconds) : 0;
    return std::to_string(r.generated) + " tokens, " + std::to_string(speed) + " a second, " + std::to_string(r.accepted) + " drafted";
  }

  std::unique_ptr<edgedec_model, Close> model_;
  std::unique_ptr<edgedec_session, Close> session_;
  std::thread thread_;
  std::mutex mutex_;
  std::deque<Piece> pieces_;
  std::string words_;
  std::atomic<bool> running_{false}, stopping_{false};
};

struct Window {
  Teller teller;
  GtkWidget *prompt, *warmth, *button, *view, *status;
  GtkTextBuffer* text = nullptr;
};

gboolean show(gpointer data) {
  auto* window = static_cast<Window*>(data);
  const bool running = window->teller.running();
  std::string words;
  for (const Piece& piece : window->teller.take(words)) {
    GtkTextIter end;
    gtk_text_buffer_get_end_iter(window->text, &end);
    gtk_text_buffer_insert_with_tags_by_name(window->text, &end, piece.text.data(), (int)piece.text.size(),
                                             piece.drafted ? "drafted" : "told", nullptr);
  }
  gtk_button_set_label(GTK_BUTTON(window->button), running ? "Stop" : "Tell");
  gtk_label_set_text(GTK_LABEL(window->status), running ? "writing" : words.c_str());
  return G_SOURCE_CONTINUE;
}

void pressed(GtkWidget*, gpointer data) {
  auto* window = static_cast<Window*>(data);
  if (window->teller.running()) return window->teller.stop();
  const char* prompt = gtk_entry_get_text(GTK_ENTRY(window->prompt));
  gtk_text_buffer_set_text(window->text, prompt, -1);
  window->teller.start(prompt, gtk_range_get_value(GTK_RANGE(window->warmth)));
}

GtkWidget* row(Window& window) {
  GtkWidget* box = gtk_box_new(GTK_ORIENTATION_HORIZONTAL, 8);
  gtk_entry_set_text(GTK_ENTRY(window.prompt = gtk_entry_new()), "Once upon a time");
  window.warmth = gtk_scale_new_with_range(GTK_ORIENTATION_HORIZONTAL, 0, 1.5, 0.1);
  gtk_widget_set_tooltip_text(window.warmth, "Temperature: 0 is the likeliest text");
  gtk_widget_set_size_request(window.warmth, 130, -1);
  window.button = gtk_button_new_with_label("Tell");
  gtk_box_pack_start(GTK_BOX(box), window.prompt, TRUE, TRUE, 0);
  for (GtkWidget* each : {window.warmth, window.button}) gtk_box_pack_start(GTK_BOX(box), each, FALSE, FALSE, 0);
  for (GtkWidget* each : {window.prompt, window.button})
    g_signal_connect(each, each == window.prompt ? "activate" : "clicked", G_CALLBACK(pressed), &window);
  return box;
}

void build(Window& window) {
  GtkWidget* top = gtk_window_new(GTK_WINDOW_TOPLEVEL);
  gtk_window_set_title(GTK_WINDOW(top), window.teller.name());
  gtk_window_set_default_size(GTK_WINDOW(top), 640, 420);
  gtk_container_set_border_width(GTK_CONTAINER(top), 10);
  GtkWidget *box = gtk_box_new(GTK_ORIENTATION_VERTICAL, 8), *scroll = gtk_scrolled_window_new(nullptr, nullptr);
  window.view = gtk_text_view_new();
  window.text = gtk_text_view_get_buffer(GTK_TEXT_VIEW(window.view));
  gtk_text_view_set_editable(GTK_TEXT_VIEW(window.view), FALSE);
  gtk_text_view_set_wrap_mode(GTK_TEXT_VIEW(window.view), GTK_WRAP_WORD_CHAR);
  gtk_text_buffer_create_tag(window.text, "told", nullptr);
  gtk_text_buffer_create_tag(window.text, "drafted", "underline", PANGO_UNDERLINE_SINGLE, nullptr);
  gtk_container_add(GTK_CONTAINER(scroll), window.view);
  gtk_label_set_xalign(GTK_LABEL(window.status = gtk_label_new("")), 0);
  gtk_box_pack_start(GTK_BOX(box), row(window), FALSE, FALSE, 0);
  gtk_box_pack_start(GTK_BOX(box), scroll, TRUE, TRUE, 0);
  gtk_box_pack_start(GTK_BOX(box), window.status, FALSE, FALSE, 0);
  gtk_container_add(GTK_CONTAINER(top), box);
  g_signal_connect(top, "destroy", G_CALLBACK(gtk_main_quit), nullptr);
  gtk_widget_show_all(top);
}

}  // namespace

int main(int argc, char** argv) {
  if (!gtk_init_check(&argc, &argv)) return fprintf(stderr, "story: no display here; a program with windows needs one\n"), 1;
  try {
    Window window{Teller(argc > 1 ? argv[1] : "nano.edb"), nullptr, nullptr, nullptr, nullptr, nullptr};
    build(window);
    g_timeout_add(40, show, &window);
    if (argc > 2) pressed(nullptr, &window);  // with anything more, it begins to tell
    gtk_main();
    return 0;
  } catch (const std::exception& error) {
    return fprintf(stderr, "story: %s\n", error.what()), 1;
  }
}
