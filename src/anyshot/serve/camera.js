// A picture from the camera: live where the browser allows it, by the phone's own camera app elsewhere.
import { at } from "/server.js";

const video = document.querySelector("#viewfinder video");
let use = () => {};

export async function fromCamera(ask) {
  use = ask;
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    return at("camera-file").click(); // there is none, it was refused, or this page may not ask
  }
  at("viewfinder").showModal();
}

at("take").addEventListener("click", () => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
  canvas.getContext("2d").drawImage(video, 0, 0);
  at("viewfinder").close();
  canvas.toBlob((blob) => { if (blob) use(blob); }, "image/jpeg", 0.92);
});
at("stop").addEventListener("click", () => at("viewfinder").close());
at("viewfinder").addEventListener("close", () => {
  video.srcObject?.getTracks().forEach((track) => track.stop());
  video.srcObject = null;
});
