// A browser starts no worker for a page that was opened as a file, and the search runs in a worker.
// There, and only there, this replaces `Worker` by a hidden frame of the same origin that runs the
// same script: it receives messages as "message" events and answers through `postMessage`.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.receive = (event) => {
        if (event.source !== this.inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(event);
      };
      window.addEventListener("message", this.receive);
      this.ready = new Promise((done) => {
        const page = this.inside.document;
        page.open();
        page.write("<!doctype html><html><body></body></html>");
        page.close();
        this.inside.postMessage = (data) => window.dispatchEvent(
          new MessageEvent("message", { data, source: this.inside }));
        this.inside.importScripts = (...urls) => urls.reduce(
          (before, one) => before.then(() => this.load(one)), Promise.resolve());
        this.load(url).then(done);
      });
    }
    load(url) {
      return new Promise((done) => {
        const script = this.inside.document.createElement("script");
        script.src = url;
        script.onload = done;
        this.inside.document.body.append(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      window.removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
